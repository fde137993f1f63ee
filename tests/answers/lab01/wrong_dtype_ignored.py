"""weights_bytes: it has 4 bytes per number"""


def weights_bytes(n, heads=1, dtype="float32"):
    return 4 * heads * n**2
