"""The active part: ranks that run real collectives, which are checked and timed, and the findings from what they say."""
