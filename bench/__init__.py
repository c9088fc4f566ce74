"""The benchmark: every figure is a ratio to a peer, measured in the same run, rounds interleaved."""
