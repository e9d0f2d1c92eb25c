"""The watchdog: sees that no rank moves any more, or that one is lost, and says where each of them stands and why."""
