"""From a model to a choice: tiers, portfolio, distilled tree, search, dispatch."""
