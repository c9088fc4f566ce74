"""The host side of the shim: the runtime directory it starts from, and typed calls to it."""
