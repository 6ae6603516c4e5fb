"""The trusted part of Sordino. With `gradients` and `accounting`, it is the only code that can break a guarantee."""
