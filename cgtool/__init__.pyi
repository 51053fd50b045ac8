from cgtool.api import check as check
from cgtool.api import diff as diff
from cgtool.api import load as load
from cgtool.api import report as report
from cgtool.in_process import capture as capture
from cgtool.in_process import verify as verify
from cgtool.model.failure import CgtoolError as CgtoolError
from cgtool.recorder.block import recording as recording
from cgtool.recorder.notes import event as event
from cgtool.recorder.notes import note as note

__version__: str
