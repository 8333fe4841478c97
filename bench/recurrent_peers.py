"""recurrent_peers.py owns the recurrences over decaying states as PyTorch users write them: one token after another, and
in chunks as products (arXiv 2312.06635, 2412.06464, 2510.26692), for peers.py to time beside attn_recurrent.

q, k, v [H,T,d], logs g [H,T,1 or d], beta [H,T,1] or None. Decays of a chunk meet as exp(G) and exp(-G), which is the
cheapest form and fine for the mild decays drawn here; attn_recurrent needs no such mildness."""

CHUNK = 64


def tokens(torch, q, k, v, g, beta):
    heads, length, dim = q.shape
    state = q.new_zeros(heads, dim, dim)
    q, w = q * dim**-0.5, g.exp()
    o = torch.empty_like(v)
    for t in range(length):
        state = state * w[:, t, :, None]
        key, value = k[:, t], v[:, t]
        if beta is not None:
            value = beta[:, t] * (value - torch.einsum("hk,hkv->hv", key, state))
        state = state + key[:, :, None] * value[:, None, :]
        o[:, t] = torch.einsum("hk,hkv->hv", q[:, t], state)
    return o


def chunk(torch, state, q, fresh, k, v, solved, left):
    """One chunk behind `state`: rows of o, and the state behind it."""
    u = v if solved is None else v - solved @ state
    o = q @ state + fresh @ u
    return o, left[:, :, None] * state + k.transpose(1, 2) @ u


def chunks(torch, q, k, v, g, beta, one=chunk):
    heads, length, dim = q.shape
    cut = lambda x: x.reshape(heads, length // CHUNK, CHUNK, -1)
    q, k, v, sums = cut(q * dim**-0.5), cut(k), cut(v), cut(g).cumsum(2)
    up, down, last = sums.exp(), (-sums).exp(), sums[:, :, -1:]
    reads, writes = q * up, k * down
    fresh = (reads @ writes.transpose(2, 3)).tril()
    end, left = k * (last - sums).exp(), last.exp().expand(-1, -1, 1, dim)
    solved = None
    if beta is not None:
        rate, keys = cut(beta), k * up
        lower = (rate * (keys @ writes.transpose(2, 3))).tril(-1)
        both = torch.cat((rate * v, rate * keys), 3)
        both = torch.linalg.solve_triangular(
            lower + torch.eye(CHUNK), both, upper=False, unitriangular=True
        )
        v, solved = both[..., :dim], both[..., dim:]
    state, o = q.new_zeros(heads, dim, dim), torch.empty_like(v)
    for n in range(length // CHUNK):
        o[:, n], state = one(
            torch, state, reads[:, n], fresh[:, n], end[:, n], v[:, n],
            None if solved is None else solved[:, n], left[:, n, 0],
        )
    return o.reshape(heads, length, dim)
