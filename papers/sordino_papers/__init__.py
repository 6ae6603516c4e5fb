"""Tables and figures of four papers, reproduced with Sordino."""
