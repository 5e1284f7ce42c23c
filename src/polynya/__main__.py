"""`python -m polynya`: the same as `polynya`."""

from polynya.cli import main

if __name__ == "__main__":
    main()
