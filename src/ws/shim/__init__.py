"""The agent inside the container: the wire and the server. Standard library only."""
