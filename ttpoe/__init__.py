"""TTPoE: Tesla's transport protocol over Ethernet, as compiled kernels with drivers for real sockets.

The package knows nothing of the emulator that runs the same kernels behind emulated switches.
"""
