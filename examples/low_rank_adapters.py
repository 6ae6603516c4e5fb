"""Fine-tune low-rank adapters (LoRA) of a small language model on private notes. Offline, a few minutes.

    python examples/low_rank_adapters.py

As `synthetic_text.py`, with a frozen backbone: noise is added to the adapters only.
"""

from __future__ import annotations

import peft
from synthetic_text import fine_tuned, pretrained, sampled, share_of_pairs


def adapted() -> peft.PeftModel:
    """The pretrained model with adapters of rank 8 in all layers that multiply by a matrix."""
    settings = peft.LoraConfig(
        r=8, lora_alpha=32, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True, task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(pretrained(), settings)
    return model.eval()


def main() -> None:
    model = adapted()
    print(f"Before: {share_of_pairs(sampled(model, 500)):.0%} of samples have the remedy of their symptom.")
    fitted = fine_tuned(model, learning_rate=1e-2)
    texts = sampled(model, 500)
    print(fitted.guarantee)
    print(f"Perplexity on public notes: {fitted.metrics[-1]['test_perplexity']:.2f}")
    print(f"After: {share_of_pairs(texts):.0%} of samples have it. The first five:")
    print(*texts[:5], sep="\n")


if __name__ == "__main__":
    main()
