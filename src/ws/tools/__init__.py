"""The file and command tools, written against `fs`. Standard library only: the shim runs this code too."""
