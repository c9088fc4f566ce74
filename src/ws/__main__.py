"""`python -m ws` is `ws`."""

from ws.cli.main import main

if __name__ == "__main__":
    main()
