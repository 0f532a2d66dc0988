"""VSE++ written anew for tests, from the equations of Faghri et al. 2018, in the calls of 2017."""

import torch
from torch import nn
from torch.autograd import Variable
from torch.nn.utils.clip_grad import clip_grad_norm


def scale(x):
    return x / (x**2).sum(1, keepdim=True) ** 0.5


def score(images, captions, measure):
    if measure == "order":
        over = (captions[None] - images[:, None]).clamp(min=0)
        return -((over**2).sum(2) ** 0.5)
    return images.mm(captions.t())


class Images(nn.Module):
    def __init__(self, opt):
        nn.Module.__init__(self)
        self.opt = opt
        self.fc = nn.Linear(opt.img_dim, opt.embed_size)

    def forward(self, x):
        x = self.fc(x)
        if not self.opt.no_imgnorm:
            x = scale(x)
        return x.abs() if self.opt.use_abs else x


class Captions(nn.Module):
    def __init__(self, opt):
        nn.Module.__init__(self)
        self.opt = opt
        self.embed = nn.Embedding(opt.vocab_size, opt.word_dim)
        self.rnn = nn.GRU(opt.word_dim, opt.embed_size, batch_first=True)

    def forward(self, words, lengths):
        states = self.rnn(self.embed(words))[0]
        rows = range(len(lengths))
        x = scale(torch.stack([states[row, lengths[row] - 1] for row in rows]))
        return x.abs() if self.opt.use_abs else x


class VSE:
    def __init__(self, opt):
        self.opt = opt
        self.img_enc = Images(opt).cuda()
        self.txt_enc = Captions(opt).cuda()
        self.params = list(self.img_enc.parameters()) + list(self.txt_enc.parameters())
        self.optimizer = torch.optim.Adam(self.params, lr=opt.learning_rate)

    def state_dict(self):
        return [self.img_enc.state_dict(), self.txt_enc.state_dict()]

    def train_start(self):
        self.img_enc.train()
        self.txt_enc.train()

    def embed(self, images, captions, lengths, volatile=False):
        images = Variable(images, volatile=volatile).cuda()
        captions = Variable(captions, volatile=volatile).cuda()
        return self.img_enc(images), self.txt_enc(captions, lengths)

    def train_emb(self, images, captions, lengths, ids):
        images, captions = self.embed(images, captions, lengths)
        scores = score(images, captions, self.opt.measure)
        true = scores.diag()
        others = 1 - torch.eye(len(true))
        of_images = (self.opt.margin + scores - true[:, None]).clamp(min=0) * others
        of_captions = (self.opt.margin + scores - true[None]).clamp(min=0) * others
        if self.opt.max_violation:
            loss = of_images.max(1)[0].sum() + of_captions.max(0)[0].sum()
        else:
            loss = of_images.sum() + of_captions.sum()

        self.optimizer.zero_grad()
        loss.backward()
        clip_grad_norm(self.params, self.opt.grad_clip)
        self.optimizer.step()
        self.logger.update("Le", loss.data[0], len(ids))
