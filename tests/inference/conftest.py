"""Fits that several tests of results look at."""

import pytest
from a_few_fits import FITS, multinomial_fit


@pytest.fixture(scope="module", params=FITS.values(), ids=FITS.keys())
def any_res(request, frame, network, logistic):
    return request.param(frame, network, logistic)


@pytest.fixture(scope="module")
def graded(frame, network, logistic):
    return multinomial_fit(frame, network, logistic)
