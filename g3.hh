Traceback (most recent call last):
  File "/tmp/s20/truth/healthy.py", line 4, in <module>
    N=int(sys.argv[1])
          ~~~~~~~~^^^
IndexError: list index out of range
