"""factorises: each entry is compared with a share of itself"""

import numpy as np


def factorises(S, phi_Q, phi_K):
    return bool(np.all(np.abs(phi_Q @ phi_K.T - S) <= 1e-6 * np.abs(S)))
