"""`python -m kerneltrick` is the command `kerneltrick`."""

from kerneltrick.cli import main

if __name__ == "__main__":
    main()
