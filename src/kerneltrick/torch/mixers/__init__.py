"""Relatives of linear attention as layers that can be trained and streamed, one file each.

All have the interface of `kerneltrick.torch.Attention`: y, state = mixer(x, state), with mask,
segment_ids or cu_seqlens. Their states can be forked and saved. `make` creates them by name.
"""

from kerneltrick.torch.mixers._based import Based
from kerneltrick.torch.mixers._comba import Comba
from kerneltrick.torch.mixers._delta_net import DeltaNet, GatedDeltaNet
from kerneltrick.torch.mixers._delta_product import DeltaProduct
from kerneltrick.torch.mixers._gated_delta_net_2 import GatedDeltaNet2
from kerneltrick.torch.mixers._gated_linear_attention import GatedLinearAttention
from kerneltrick.torch.mixers._hyena import Hyena
from kerneltrick.torch.mixers._kda import KDA
from kerneltrick.torch.mixers._mamba import Mamba
from kerneltrick.torch.mixers._mesa import Mesa
from kerneltrick.torch.mixers._power_retention import PowerRetention
from kerneltrick.torch.mixers._registry import MIXERS, make
from kerneltrick.torch.mixers._retention import Retention
from kerneltrick.torch.mixers._rwkv import RWKV
from kerneltrick.torch.mixers._rwkv7 import RWKV7
from kerneltrick.torch.mixers._ssd import SSD

__all__ = [
    "KDA",
    "MIXERS",
    "RWKV",
    "RWKV7",
    "SSD",
    "Based",
    "Comba",
    "DeltaNet",
    "DeltaProduct",
    "GatedDeltaNet",
    "GatedDeltaNet2",
    "GatedLinearAttention",
    "Hyena",
    "Mamba",
    "Mesa",
    "PowerRetention",
    "Retention",
    "make",
]
