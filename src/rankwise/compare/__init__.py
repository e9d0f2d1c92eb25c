"""`rankwise compare`: one training in several layouts, timed against one device in alternating rounds."""
