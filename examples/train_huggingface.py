"""Train a tiny BERT on handwritten digits, read as words of 64 pixels, with Hugging Face's Trainer.

python train_huggingface.py --model bert --epochs 3 --output run
"""

import argparse
from pathlib import Path

import torch
from train_digits import digits
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from slurm_hadar.runtime.huggingface import HadarTransformersCallback


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="bert", help="name in the profiles")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=lambda text: int(float(text)))
    parser.add_argument("--batch", type=int, default=64, help="global batch")
    parser.add_argument(
        "--output", type=Path, default=Path("run"), help="folder of the checkpoints"
    )
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    args.output.mkdir(parents=True, exist_ok=True)
    x, y, _, _ = digits(args.output / "digits.npy")
    pixels = (x * 16).long()
    dataset = [{"input_ids": pixels[i], "labels": y[i]} for i in range(len(y))]
    config = BertConfig(
        vocab_size=17,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        num_labels=10,
    )
    arguments = TrainingArguments(
        output_dir=str(args.output),
        num_train_epochs=-(-args.samples // len(y)) if args.samples else args.epochs,
        learning_rate=1e-3,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    run = HadarTransformersCallback(batch=args.batch, samples=args.samples, name=args.model)
    trainer = Trainer(
        BertForSequenceClassification(config), arguments, train_dataset=dataset, callbacks=[run]
    )
    trainer.train(resume_from_checkpoint=run.resume(trainer))
    print(f"{args.model}: {run.samples} samples")


if __name__ == "__main__":
    main()
