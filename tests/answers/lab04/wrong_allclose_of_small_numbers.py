"""factorises: the tolerance is absolute"""

import numpy as np


def factorises(S, phi_Q, phi_K):
    return np.allclose(phi_Q @ phi_K.T, S)
