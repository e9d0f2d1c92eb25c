"""`rankwise watch`: a run while it trains, its ranks side by side, from the files that they leave in its folder."""
