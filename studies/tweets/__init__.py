"""Fine-tuning a transformer on tweets with LoRA: what a model tells about the persons that tweets name."""
