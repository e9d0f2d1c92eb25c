"""`python -m rankwise`: the same as the command `rankwise`."""

from rankwise.cli import main

if __name__ == "__main__":
    main()
