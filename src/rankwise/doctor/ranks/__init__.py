"""The active part: ranks that run real collectives, checked and timed, and the findings from what they say."""
