"""Tests of the packages that plug into CARMA from outside, each in a folder of its name."""
