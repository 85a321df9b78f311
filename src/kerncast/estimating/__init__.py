"""Whole models: the ops of a transformer decoder, what each takes on a device, and what they add up to.

A Hugging Face config becomes a `Decoder` (what its layers are), which becomes a list of `Call`s (what one step runs on one
GPU), which becomes an `Estimate` (how long each takes). What answers questions about single ops is passed in.
"""
