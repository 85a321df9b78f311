"""Whether an artefact is whole: everything that can be checked of it, by the code that reads it. Nothing of it is run."""
