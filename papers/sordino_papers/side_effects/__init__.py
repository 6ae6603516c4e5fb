"""Tables on what privacy does to people and to attacks: Xu and Chen (2026), and one of ours."""
