"""Random histories of lanes, clients and strangers, as the sensors would tell them, and the truth beside them."""
