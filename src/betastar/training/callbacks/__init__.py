"""Callbacks that attach a monitor to the training loops of Lightning and of Hugging Face."""
