"""The shape of run_glue.py of transformers: HfArgumentParser, Trainer, a tokenised dataset;
with a small BERT from its configuration, so that nothing is downloaded."""

import logging
import os
import sys
from dataclasses import dataclass, field

import numpy as np
import torch
import transformers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)


@dataclass
class DataTrainingArguments:
    max_seq_length: int = field(default=64)


class Sentences(torch.utils.data.Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return 512

    def __getitem__(self, index):
        ids = [101] + [(index * 7 + i) % 900 for i in range(self.length - 2)] + [102]
        return {"input_ids": ids, "attention_mask": [1] * self.length, "label": index % 2}


def main():
    parser = HfArgumentParser((DataTrainingArguments, TrainingArguments))
    data_args, training_args = parser.parse_args_into_dataclasses()
    logging.basicConfig(handlers=[logging.StreamHandler(sys.stdout)], level=logging.INFO)
    transformers.utils.logging.enable_default_handler()
    logger.warning(f"device: {training_args.device}, n_gpu: {training_args.n_gpu}")
    if os.path.isdir(training_args.output_dir):
        logger.info("checkpoint: %s", get_last_checkpoint(training_args.output_dir))
    set_seed(training_args.seed)
    config = BertConfig(
        vocab_size=1000,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
    )
    model = BertForSequenceClassification(config)
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=Sentences(data_args.max_seq_length),
        eval_dataset=Sentences(data_args.max_seq_length),
        compute_metrics=lambda p: {
            "accuracy": (np.argmax(p.predictions, axis=1) == p.label_ids).mean().item()
        },
        data_collator=default_data_collator,
    )
    result = trainer.train()
    trainer.save_model()
    trainer.save_metrics("train", result.metrics)


if __name__ == "__main__":
    main()
