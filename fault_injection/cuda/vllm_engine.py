"""An engine of vLLM in this process, which answers sixteen requests at once, some times.

`vllm_engine.py eager|graphs [busy]`: as it is, or decoding by CUDA graphs. A model of Qwen2.5's 0.5B shape with random
weights, so that nothing is fetched. It answers, is idle until a line comes on standard input, and answers on; with
`busy` it says so after the first answers behind the line. All tokens are chosen greedily from fixed weights, so that
two runs can be compared. Events and exit status: as of `torch_idle.py`; `went_on` has the time of the first answers
after the line, or the longest of any. What vLLM prints goes to standard error. It runs under the interpreter that holds
vLLM (0.20.2 was tried), so it imports nothing of this project.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DIED, FAILED, USAGE = 3, 4, 2
_REQUESTS, _PROMPT, _TOKENS = 16, 32, 64
_BEFORE, _IDLE = 3, 3
"""How often all requests are answered: before the line, and behind it."""
_BUSY = {"eager": 8, "graphs": 60}
"""Behind the line, busy: some 15 seconds, in which the fault comes."""
_CACHE = 1 << 30
_SHAPE = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
_ENVIRONMENT = {
    # The engine in this process, and no kernels that the wheel has for other models.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
_GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [_REQUESTS]}

_EVENTS = os.fdopen(os.dup(1), "w")
"""Standard output as it was given; what vLLM prints goes to standard error."""


def emit(event: str, **members: object) -> None:
    """Print one event at once."""
    head = {"event": event, "pid": os.getpid(), "monotonic": time.monotonic(), "realtime": time.time()}
    _EVENTS.write(json.dumps(head | members) + "\n")
    _EVENTS.flush()


class Engine:
    """The engine, and what it has answered."""

    def __init__(self, vllm: Any, model: Path, graphs: bool) -> None:
        """Make it."""
        (model / "config.json").write_text(json.dumps(_SHAPE))
        self._engine = vllm.LLM(
            model=str(model),
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype="bfloat16",
            enforce_eager=not graphs,
            attention_backend="TRITON_ATTN",
            kv_cache_memory_bytes=_CACHE,
            gpu_memory_utilization=0.05,
            max_model_len=512,
            max_num_seqs=_REQUESTS,
            seed=0,
            enable_prefix_caching=False,
            **({"compilation_config": _GRAPHS} if graphs else {}),
        )
        self._how = vllm.SamplingParams(temperature=0.0, max_tokens=_TOKENS, ignore_eos=True, detokenize=False)
        self.tokens: list[list[list[int]]] = []

    def answer(self) -> float:
        """Answer all requests; how long that took, in seconds."""
        begin = time.monotonic()
        prompts = [
            {"prompt_token_ids": [5 + (7 * request + 13 * place) % 150_000 for place in range(_PROMPT + request)]}
            for request in range(_REQUESTS)
        ]
        answers = self._engine.generate(prompts, self._how, use_tqdm=False)
        self.tokens.append([list(each.outputs[0].token_ids) for each in answers])
        return time.monotonic() - begin


def run(vllm: Any, model: Path, kind: str, busy: bool) -> int:
    """Run it; the exit status."""
    told = False
    try:
        engine = Engine(vllm, model, kind == "graphs")
        usual = [engine.answer() for _ in range(_BEFORE)]
        emit("idle", seconds=min(usual))
        if not sys.stdin.readline():
            return 0
        told, times = True, []
        for number in range(_BUSY[kind] if busy else _IDLE):
            times.append(engine.answer())
            if busy and number == 0:
                emit("busy")
        emit("went_on", milliseconds=1e3 * (max(times) if busy else times[0]))
        emit("result", digest=hashlib.sha256(json.dumps(engine.tokens).encode()).hexdigest())
    # Also what the engine makes of an error of CUDA.
    except Exception as error:
        emit("died" if told else "failed", code=-1, name=(str(error).splitlines() or [repr(error)])[0], call="vllm")
        return DIED if told else FAILED
    emit("finished")
    return 0


def main() -> int:
    """Import vLLM and run it."""
    kind = sys.argv[1] if len(sys.argv) > 1 else ""
    if kind not in _BUSY:
        sys.stderr.write("usage: vllm_engine.py eager|graphs [busy]\n")
        return USAGE
    os.dup2(2, 1)
    os.environ.update(_ENVIRONMENT)
    emit("start")
    with tempfile.TemporaryDirectory(prefix="model-") as model:
        return run(importlib.import_module("vllm"), Path(model), kind, sys.argv[2:] == ["busy"])


if __name__ == "__main__":
    # Straight out: with a dead context the engine's teardown makes CUDA calls that may never return.
    os._exit(main())
