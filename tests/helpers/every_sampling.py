"""Every setting of `Sampling` alone, and several together."""

from treespec import Sampling

SAMPLINGS = {
    "plain": Sampling(),
    "greedy": Sampling(temperature=0.0),
    "temperature": Sampling(temperature=0.7),
    "top_k": Sampling(temperature=0.7, top_k=5),
    "top_p": Sampling(top_p=0.8),
    "min_p": Sampling(min_p=0.1),
    "typical_p": Sampling(typical_p=0.8),
    "epsilon": Sampling(epsilon_cutoff=0.01),
    "eta": Sampling(eta_cutoff=0.01),
    "all": Sampling(0.9, top_k=50, top_p=0.9, min_p=0.01),
}
