"""Reads a profile without any library for protobuf."""

import gzip


def fields(data):
  """(number, value) of each field of a protobuf message; a value is an int or bytes."""
  position = 0

  def varint():
    nonlocal position
    value = shift = 0
    while True:
      byte = data[position]
      position += 1
      value |= (byte & 0x7F) << shift
      shift += 7
      if byte < 0x80:
        return value

  while position < len(data):
    key = varint()
    value = varint()
    if key & 7 == 2:
      value, position = data[position:position + value], position + value
    elif key & 7 != 0:
      raise ValueError(f"wire type {key & 7} is not used in a profile")
    yield key >> 3, value


def packed(data):
  """The numbers of a packed repeated field."""
  values, value, shift = [], 0, 0
  for byte in data:
    value |= (byte & 0x7F) << shift
    shift += 7
    if byte < 0x80:
      values.append(value)
      value = shift = 0
  return values


class Profile:
  """The parts of a profile that the tests use: total(type), labels() as a set of (key, value),
  functions() as a set of names, rows()."""

  def __init__(self, path):
    with gzip.open(path) as file:
      self.all = list(fields(file.read()))
    self.strings = [value.decode() for number, value in self.all if number == 6]
    self.types = [self.strings[dict(fields(value))[1]] for number, value in self.all if number == 1]
    self.samples = [list(fields(value)) for number, value in self.all if number == 2]

  def total(self, sample_type):
    index = self.types.index(sample_type)
    return sum(packed(value)[index] for sample in self.samples for number, value in sample if number == 2)

  def labels(self):
    found = (dict(fields(value)) for sample in self.samples for number, value in sample if number == 3)
    return {(self.strings[label[1]], self.strings[label[2]]) for label in found if 2 in label}

  def functions(self):
    return {self.strings[dict(fields(value))[2]] for number, value in self.all if number == 5}

  def rows(self):
    """The samples: the frames (function, file, line) from the innermost, the values by type, and the labels."""
    functions = {f[1]: (self.strings[f.get(2, 0)], self.strings[f.get(4, 0)])
                 for f in (dict(fields(value)) for number, value in self.all if number == 5)}
    frames = {}
    for number, value in self.all:
      if number == 4:
        parts = list(fields(value))
        lines = (dict(fields(part)) for field, part in parts if field == 4)
        frames[dict(parts)[1]] = [(*functions[line[1]], line.get(2, 0)) for line in lines]
    for sample in self.samples:
      ids = [i for number, value in sample if number == 1 for i in packed(value)]
      values = [n - (1 << 64) if n >> 63 else n for number, value in sample if number == 2 for n in packed(value)]
      labels = (dict(fields(value)) for number, value in sample if number == 3)
      yield ([frame for i in ids for frame in frames[i]], dict(zip(self.types, values)),
             {self.strings[label[1]]: self.strings[label[2]] if 2 in label else label.get(3, 0) for label in labels})
