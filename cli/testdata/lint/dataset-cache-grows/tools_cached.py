"""A tool for each rate and the landmarks of a face are no samples; what is decoded is one."""

import librosa
import torchaudio
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self, files, rate):
        self.files, self.rate = files, rate
        self.converters = {}

    def __getitem__(self, i):
        wave, rate = torchaudio.load(self.files[i])
        if rate not in self.converters:
            self.converters[rate] = torchaudio.transforms.Resample(rate, self.rate)
        return self.converters[rate](wave)


class Faces(Dataset):
    def __init__(self, faces, finder):
        self.faces, self.finder = faces, finder
        self.landmarks = {}

    def __getitem__(self, i):
        if i not in self.landmarks:
            self.landmarks[i] = self.finder(self.faces[i])
        return self.faces[i], self.landmarks[i]


class Recordings(Dataset):
    def __init__(self, files):
        self.files = files
        self.waves = {}

    def _wave(self, path):
        wave, _ = librosa.load(path, sr=16000)
        return wave

    def __getitem__(self, i):
        if i not in self.waves:
            self.waves[i] = self._wave(self.files[i])  # expect: dataset-cache-grows
        return self.waves[i]


class Stimuli(Dataset):
    colours = ["red.wav", "green.wav", "blue.wav"]

    def __init__(self, rows):
        self.rows = rows
        self.sounds = []
        for name in self.colours:
            wave, _ = librosa.load(name)
            self.sounds.append(wave)  # hint: dataset-read-whole

    def __getitem__(self, i):
        return self.rows[i], self.sounds[i % 3]


loader = DataLoader(Recordings(["a.wav"]), batch_size=8)
