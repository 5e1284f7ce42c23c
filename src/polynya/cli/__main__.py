"""`python -m polynya.cli`: the same as `polynya`."""

from polynya.cli import main

if __name__ == "__main__":
    main()
