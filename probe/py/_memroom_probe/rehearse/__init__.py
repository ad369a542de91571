from .install import install
