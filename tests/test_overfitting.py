"""Every mechanism can be trained: a small encoder learns 32 random sequences by heart."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lln

SEQUENCES, LENGTH, VOCABULARY, HIDDEN = 32, 256, 64, 8
DIM, HEADS, LAYERS = 64, 4, 2
# Their defaults are for longer sequences, and slow here.
OPTIONS = {"reformer": {"chunk_size": 16}, "skyformer": {"landmarks": 32}}
MASK = VOCABULARY  # the token in place of what has to be guessed


class Encoder(nn.Module):
    """Two pre-norm layers around the mixer, and learned positions."""

    def __init__(self, build):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY + 1, DIM)
        self.positions = nn.Parameter(0.1 * torch.randn(LENGTH, DIM))
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.LayerNorm(DIM),
                    build(dim=DIM, heads=HEADS, max_len=LENGTH, layer=layer, layers=LAYERS),
                    nn.Sequential(
                        nn.LayerNorm(DIM),
                        nn.Linear(DIM, 4 * DIM),
                        nn.GELU(),
                        nn.Linear(4 * DIM, DIM),
                    ),
                ]
            )
            for layer in range(LAYERS)
        )
        self.head = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, VOCABULARY))

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions
        for norm, mixer, mlp in self.layers:
            x = x + mixer(norm(x))
            x = x + mlp(x)
        return self.head(x)


def learn(build, steps=300):
    """The share of hidden tokens that the encoder knows in the end.

    They are noise: only telling the sequences apart, by attention to other tokens, finds them all.
    """
    tokens = torch.randint(VOCABULARY, (SEQUENCES, LENGTH))
    hidden = torch.rand(SEQUENCES, LENGTH).argsort(1)[:, :HIDDEN]
    wanted = tokens.gather(1, hidden)
    given = tokens.scatter(1, hidden, MASK)
    encoder = Encoder(build)
    optimiser = torch.optim.AdamW(encoder.parameters(), lr=3e-3, weight_decay=0.0)
    for _ in range(steps):
        guess = encoder(given).gather(1, hidden[..., None].expand(-1, -1, VOCABULARY))
        right = (guess.argmax(-1) == wanted).double().mean().item()
        if right > 0.99:
            break
        loss = F.cross_entropy(guess.flatten(0, 1), wanted.flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimiser.step()
    return right


@pytest.mark.slow
@pytest.mark.parametrize("name", lln.available())
def test_an_encoder_learns_random_sequences_by_heart(name):
    assert learn(partial(lln.build, name, **OPTIONS.get(name, {}))) > 0.99


@pytest.mark.slow
def test_without_attention_it_does_not():
    assert learn(lambda **sizes: nn.Linear(DIM, DIM)) < 0.9
