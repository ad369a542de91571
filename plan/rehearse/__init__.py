from .install import install as install
