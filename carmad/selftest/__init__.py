"""The self-test behind `carma doctor --gpu`: does this GPU do what CARMA relies on?"""
