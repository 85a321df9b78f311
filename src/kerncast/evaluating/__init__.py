"""Is this model good, and is it better than the last one?"""

from kerncast.evaluating.compare import Limits, Verdict, compare
from kerncast.evaluating.evaluation import Evaluation, evaluate

__all__ = ["Evaluation", "Limits", "Verdict", "compare", "evaluate"]
