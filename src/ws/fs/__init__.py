"""The Filesystem protocol and its backends. Standard library only: the shim runs this code too."""
