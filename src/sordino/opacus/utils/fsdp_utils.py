"""Where Opacus keeps its wrapper for fully sharded training."""

from sordino.opacus.distributed import FSDP2Wrapper as FSDP2Wrapper
