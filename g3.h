## healthy 20 {'info data-quality': 20, 'info low-comm-overlap': 17, 'FAIL low-comm-overlap': 3}
## lastbatch 20 {'FAIL low-comm-overlap': 4, 'info data-quality': 20, 'info low-comm-overlap': 16}
## clip 20 {'info low-comm-overlap': 15, 'FAIL low-comm-overlap': 5}
## accumulation 20 {'info data-quality': 20, 'info low-comm-overlap': 20, 'info step-time-change': 20}
