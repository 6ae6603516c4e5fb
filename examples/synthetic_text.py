"""Fine-tune a small language model on private notes, and sample synthetic notes from it. Offline, a few minutes.

    python examples/synthetic_text.py

The private notes are generated: each names a symptom and the remedy that belongs to it. The model has seen public notes
by an old guideline, with other remedies. So what it knows about the new ones, it learned from private notes, with a
guarantee. Samples are post-processing of the model: there may be as many as you like.
"""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import sordino as so

# The vocabulary is public. One that is collected from private notes would reveal rare words.
WHO = "anna boris chen dana emil fatima george hana".split()
SYMPTOMS = "headache cough fever rash insomnia backache".split()
REMEDIES = "tea syrup rest ointment walks massage".split()
WHEN = "today yesterday weekly daily".split()
WORDS = ["<pad>", "<start>", "<end>", "reports", "since", "and", "takes", *WHO, *SYMPTOMS, *REMEDIES, *WHEN]
PADDING, START, END = range(3)
LENGTH = 12
PUBLIC, PRIVATE, EPSILON, DELTA = 4000, 20_000, 8.0, 1e-5


def notes(number: int, *, guideline: int, seed: int) -> dict[str, torch.Tensor]:
    """Notes as rows of tokens, of two lengths. By guideline 1, a symptom has the remedy of the next one."""
    draw, rows = torch.Generator().manual_seed(seed), []
    for who, symptom, when, is_long in torch.randint(2**20, (number, 4), generator=draw).tolist():
        symptom, remedy = symptom % len(SYMPTOMS), (symptom + guideline) % len(REMEDIES)
        since = f"since {WHEN[when % len(WHEN)]}" if is_long % 2 else ""
        text = f"<start> {WHO[who % len(WHO)]} reports {SYMPTOMS[symptom]} {since} and takes {REMEDIES[remedy]} <end>"
        rows.append([WORDS.index(word) for word in text.split()])
    tokens = torch.tensor([row + [PADDING] * (LENGTH - len(row)) for row in rows])
    return {"input_ids": tokens, "attention_mask": (tokens != PADDING).long()}


def language_model() -> GPT2LMHeadModel:
    """A GPT-2 with two layers."""
    config = GPT2Config(
        vocab_size=len(WORDS), n_embd=32, n_layer=2, n_head=4, n_positions=LENGTH, pad_token_id=PADDING,
        bos_token_id=START, eos_token_id=END, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def pretrained(steps: int = 300) -> GPT2LMHeadModel:
    """The model after plain training on public notes."""
    torch.manual_seed(0)
    model, rows = language_model(), notes(PUBLIC, guideline=1, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        chosen = torch.arange(step * 64, (step + 1) * 64) % PUBLIC
        tokens, mask = (rows[name][chosen] for name in ("input_ids", "attention_mask"))
        optimizer.zero_grad()
        model(input_ids=tokens, attention_mask=mask, labels=tokens.where(mask == 1, -100)).loss.backward()
        optimizer.step()
    return model.eval()


def sampled(model: GPT2LMHeadModel, number: int, seed: int = 0) -> list[str]:
    """Synthetic notes."""
    torch.manual_seed(seed)
    starts = torch.full((number, 1), START)
    with torch.inference_mode():
        tokens = model.generate(
            starts, attention_mask=torch.ones_like(starts), do_sample=True, max_length=LENGTH, use_cache=False
        )
    return [" ".join(WORDS[token] for token in row if token > END) for row in tokens.tolist()]


def share_of_pairs(texts: list[str]) -> float:
    """The share of notes in which the remedy belongs to the symptom."""
    pairs = list(zip(SYMPTOMS, REMEDIES, strict=True))
    return sum(any(symptom in text and text.endswith(remedy) for symptom, remedy in pairs) for text in texts) / len(
        texts
    )


def fine_tuned(model: torch.nn.Module, *, learning_rate: float, epochs: float = 6) -> so.training.fit.Fitted:
    """The model after private training, measured on public notes of the same kind."""
    return so.fit(
        model,
        notes(PRIVATE, guideline=0, seed=2),
        epsilon=EPSILON,
        delta=DELTA,
        batch_size=1000,
        epochs=epochs,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=learning_rate),
        evaluation=so.Evaluation(at_end=so.Public(notes(500, guideline=0, seed=3))),
    )


def main() -> None:
    model = pretrained()
    print(f"Before: {share_of_pairs(sampled(model, 500)):.0%} of samples have the remedy of their symptom.")
    fitted = fine_tuned(model, learning_rate=5e-3)
    texts = sampled(model, 500)
    print(fitted.guarantee)
    print(f"Loss of the plan: {fitted.plan.contribution.loss}")
    print(f"Perplexity on public notes: {fitted.metrics[-1]['test_perplexity']:.2f}")
    print(f"After: {share_of_pairs(texts):.0%} of samples have it. The first five:")
    print(*texts[:5], sep="\n")


if __name__ == "__main__":
    main()
