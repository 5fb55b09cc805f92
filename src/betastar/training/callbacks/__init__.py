"""The monitor in other people's training loops: Lightning and Hugging Face."""
