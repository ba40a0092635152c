"""sizes.py BATCH TOKENS: two steps of training of a transformer. Its counters are the sizes."""
import sys

import hbmprof
import torch
from torch import nn

batch, tokens = map(int, sys.argv[1:])
hbmprof.counter("batch", batch)
hbmprof.counter("tokens", tokens)
layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
model = nn.Sequential(nn.Embedding(1000, 256), nn.TransformerEncoder(layer, 4), nn.Linear(256, 1000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    words = torch.zeros(batch, tokens, dtype=torch.long, device="cuda")
    loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
