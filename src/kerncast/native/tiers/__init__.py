"""The quick tiers: portfolio, small forest, distilled tree."""
